"""Stores for LangChain, LlamaIndex and Haystack, and search by text with sentence-transformers.

Each framework is a module of its own, which needs an extra of the same name. None is imported by default.
"""
