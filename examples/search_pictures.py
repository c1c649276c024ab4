"""Find out which pictures of a folder show what is on another picture.

python examples/search_pictures.py my-photos query.jpg
python examples/search_pictures.py                       # on photographs that ship inside scikit-image

Every picture is hundreds of SIFT features. Each feature of the query looks for its nearest one in the folder, and
votes for the picture that it is from.
"""

import argparse
from pathlib import Path

import cv2
import numpy as np
import skimage

from autojacobin import BinaryAutoencoder, Index
from autojacobin.datasets.descriptors import sift

PHOTOGRAPHS = ("astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "rocket.jpg")

parser = argparse.ArgumentParser(description="Search a folder of pictures with a picture.")
parser.add_argument("folder", nargs="?", type=Path)
parser.add_argument("query", nargs="?", type=Path)
parser.add_argument("--bits", type=int, default=64)
arguments = parser.parse_args()


def read(path):
    """Read a picture in shades of grey; None where it is none."""
    return cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)


if arguments.folder is None:
    home = Path(skimage.__file__).parent / "data"
    paths = [home / name for name in PHOTOGRAPHS]
    cat = read(home / "chelsea.png")
    query = cv2.rotate(cv2.resize(cat[40:240, 100:350], None, fx=0.8, fy=0.8), cv2.ROTATE_90_CLOCKWISE)
else:
    paths = sorted(arguments.folder.iterdir())
    query = read(arguments.query) if arguments.query else read(paths[0])

features = {path.name: sift(picture, limit=500)[0] for path in paths if (picture := read(path)) is not None}
vectors = np.concatenate(list(features.values()))
picture_of = np.repeat(np.arange(len(features)), [len(found) for found in features.values()])

# Codes of a binary auto-encoder need few candidates, and the index chooses how many.
index = Index(BinaryAutoencoder(arguments.bits, random_state=0).fit(vectors))
index.add(vectors)
_, nearest = index.search(sift(query, limit=500)[0], k=1, recall=0.95)
votes = np.bincount(picture_of[nearest[:, 0]], minlength=len(features))

print(f"{len(vectors):,} features of {len(features)} pictures; the query has {len(nearest)}")
for number in np.argsort(-votes, kind="stable")[:5]:
    print(f"{votes[number]:4d} votes  {list(features)[number]}")
