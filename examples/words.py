"""The neighbours of a word, printed as words.

``pip install wordllama`` brings real vectors: the package ships those of 32,000 tokens. Without it, or with
``--spelling``, words are compared by their spelling: their character n-grams are hashed into vectors.

python examples/words.py summer doctor
python examples/words.py --spelling iterating
"""

import argparse
import json
import re
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from safetensors.numpy import load_file
from sklearn.feature_extraction.text import HashingVectorizer

from autojacobin import Index


def wordllama_vectors(folder: Path) -> tuple[list[str], np.ndarray]:
    """The words that are whole tokens, with their vectors, from the files of the package."""
    tokens = json.loads((folder / "tokenizers" / "l2_supercat_tokenizer_config.json").read_text(encoding="utf-8"))
    rows = {token[1:]: row for token, row in tokens["model"]["vocab"].items() if re.fullmatch("▁[a-z]{3,}", token)}
    vectors = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
    return list(rows), vectors[list(rows.values())].astype(np.float32)


def spelling_vectors() -> tuple[list[str], np.ndarray]:
    """The words of Python's own documentation, which ships with it, with vectors of their character n-grams."""
    words = sorted(set(re.findall(r"\b[a-z]{3,}\b", " ".join(topics.values()))))
    ngrams = HashingVectorizer(n_features=256, analyzer="char_wb", ngram_range=(2, 4))
    return words, ngrams.transform(words).toarray().astype(np.float32)


parser = argparse.ArgumentParser(description="Print the neighbours of words.")
parser.add_argument("words", nargs="*", default=["string", "class", "error"])
parser.add_argument("--spelling", action="store_true", help="compare words by their spelling")
arguments = parser.parse_args()

package = None if arguments.spelling else find_spec("wordllama")
if package is None and not arguments.spelling:
    print("Words are compared by their spelling; pip install wordllama to compare them by their meaning.")
words, vectors = spelling_vectors() if package is None else wordllama_vectors(Path(package.origin).parent)

index = Index.from_vectors(vectors, ids=words, metric="cosine")
for word in arguments.words:
    if word in index:
        print(f"{word}: {', '.join(index.search(ids=[word], k=8)[1][0])}")
    else:
        print(f"{word}: is not among the {len(index):,} words; give another one")
