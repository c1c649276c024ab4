"""The compiled code of the searches. Each file begins with what it computes, and how."""
