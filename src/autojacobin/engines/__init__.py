"""Adapters for other search engines, one per file, on one contract."""

from autojacobin.engines.contract import Engine
from autojacobin.engines.faiss import FaissEngine, hasher_to_faiss, to_faiss, write_faiss
from autojacobin.engines.lancedb import LanceDB
from autojacobin.engines.milvus import Milvus
from autojacobin.engines.pgvector import PgVector
from autojacobin.engines.sqlite import SQLite

__all__ = [
    "Engine", "FaissEngine", "LanceDB", "Milvus", "PgVector", "SQLite", "hasher_to_faiss", "to_faiss", "write_faiss",
]  # fmt: skip
