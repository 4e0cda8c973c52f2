"""The page at /: its policy, and in a real browser, where there is one, a chat."""

from __future__ import annotations

import asyncio
import re
import shutil

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from tests.host.llm_support import served, text_checkpoint
from tests.host.test_llm_serve import KEY, call
from tilewright.llm.asynchronous import AsyncLLM
from tilewright.llm.serve.application import Application

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    llm = AsyncLLM(text_checkpoint(tmp_path_factory.mktemp("page") / "bytes"), memory=1 << 20)
    yield llm
    llm.close()


def test_the_page_asks_nothing_of_others(llm):
    status, headers, body = asyncio.run(call(Application(llm, "bytes", [KEY]), "GET", "/"))
    policy, text = headers[b"content-security-policy"].decode(), body.decode()
    assert status == 200 and "default-src 'none'" in policy and "unsafe" not in policy
    assert not re.search(r"https?://|src=|innerHTML|eval\(| on[a-z]+=|style=", text)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_chat_in_a_browser(llm, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    pytest.importorskip("uvicorn")
    with served(Application(llm, "bytes", [KEY])) as address, playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"], timeout=120_000)
        page = browser.new_page(viewport={"width": 1200, "height": 750})
        problems, asked = [], []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{address}/")
        page.locator("#state", has_text="a key is needed").wait_for(timeout=60_000)
        page.fill("#key", KEY)
        page.locator("#model option").wait_for(state="attached", timeout=60_000)
        page.fill("#text", "<b>Hello</b> there")
        page.press("#text", "Enter")
        page.wait_for_selector(".assistant .note", timeout=60_000)
        assert page.text_content(".user") == "<b>Hello</b> there" and "tokens" in page.text_content(".assistant .note")
        page.locator("#finished", has_text=re.compile("^1$")).wait_for(timeout=60_000)
        page.route("**/completions", lambda route: route.fulfill(status=500, json={"error": {"message": "broken"}}))
        page.fill("#text", "again")
        page.press("#text", "Enter")
        page.locator(".error", has_text="broken").wait_for(timeout=60_000)
        assert page.evaluate("messages.map((one) => one.role)") == ["user", "assistant"]
        page.click("#clear")
        assert page.evaluate("messages.length") == 0
        problems.pop()
        page.screenshot(path=str(tmp_path / "page.png"))
        assert all(url.startswith((address, "data:")) for url in asked)
        assert all("401" in problem for problem in problems)  # before there was a key
        browser.close()
