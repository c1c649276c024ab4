"""Vectors of texts that need no download: hashed character n-grams, projected at random."""

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer

_NGRAMS = HashingVectorizer(n_features=4096, analyzer="char_wb", ngram_range=(2, 4))


def embed(texts, n_features=48):
    directions = np.random.default_rng(0).normal(size=(4096, n_features)).astype(np.float32)
    return np.asarray(_NGRAMS.transform(texts) @ directions, dtype=np.float32)


def cosines(query, texts, n_features=48):
    """Cosine similarity of a text to others, computed in the plain way."""
    vectors = embed(texts, n_features).astype(np.float64)
    vector = embed([query], n_features)[0].astype(np.float64)
    return vectors @ vector / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vector)


class Model:
    """Has the same method as a SentenceTransformer."""

    def encode(self, texts):
        return embed(texts)
