"""The HTTP server of language models: an ASGI application with the endpoints of OpenAI's API."""
