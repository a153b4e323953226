"""What benchmarks/fuzz.py is made of: valid inputs, mutations of them, and processes that try them."""
