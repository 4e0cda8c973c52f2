"""What `breadth_cuda.py` draws: families of operators, each with a function that makes a case of a seeded generator."""
