"""Stores for LangChain, LlamaIndex and Haystack, and search by text; each module needs the extra of its name."""
