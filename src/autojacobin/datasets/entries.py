"""The entries of the catalogue: each named data set with its files, sizes and checksums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """A file to download."""

    url: str
    name: str  # in the folder of its set
    checksum: str | None = None  # "md5:…" or "sha256:…", where one is published


@dataclass(frozen=True)
class Split:
    """Numbers of vectors for training, in the base, and of queries; with ``train=None`` all are used for training."""

    train: int | None
    base: int
    queries: int


@dataclass(frozen=True)
class Entry:
    """A named set: what is known about it before it is downloaded.

    ``layout`` is a key of ``sources.LAYOUTS``. Files with another number of ``rows`` in all, or of another
    ``dimension``, are refused. The ``split`` is that of Table I of the paper, if the set is in it. ``licence`` has the
    terms of use as its owners publish them, and ``download`` the size of the download in words. ``files`` are empty if
    the set ships with something installed, or must be fetched by hand. ``by_hand`` says what to put into the folder of
    the set, and where to get it. ``elsewhere`` are folders in which a package of the operating system may have put it.
    """

    name: str
    description: str
    layout: str
    dimension: int
    rows: int
    split: Split
    source: str
    licence: str
    citation: str
    download: str = "none"
    files: tuple[RemoteFile, ...] = ()
    by_hand: str = ""
    elsewhere: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """How to get it: ``built in``, ``download`` or ``by hand``."""
        if self.files:
            return "download"
        return "by hand" if self.by_hand else "built in"


# for terms that are not published in a short form
_SEE_SOURCE = "see the source"
_TEXMEX_PAGE = "http://corpus-texmex.irisa.fr/"
_TEXMEX_FTP = "ftp://ftp.irisa.fr/local/texmex/corpus/"
_PQ_PAPER = (
    "H. Jégou, M. Douze, C. Schmid: Product quantization for nearest neighbor search. "
    "IEEE Transactions on Pattern Analysis and Machine Intelligence 33(1), 2011, 117–128"
)


def _texmex(
    name: str, archive: str, what: str, dimension: int, sizes: tuple[int, Split], download: str, md5: str
) -> Entry:
    learn, split = sizes
    rows = learn + split.base + split.queries
    return Entry(
        name=name,
        description=f"{what}; the base and the queries are those provided, and the training set is "
        + ("the learning set" if split.train is None else f"{split.train:,} of the {learn:,} learning vectors"),
        layout="texmex",
        dimension=dimension,
        rows=rows,
        split=split,
        source=_TEXMEX_PAGE,
        licence=_SEE_SOURCE,
        citation=_PQ_PAPER,
        download=download,
        files=(
            RemoteFile(
                url=f"{_TEXMEX_FTP}{archive}.tar.gz",
                name=f"{archive}.tar.gz",
                checksum=f"md5:{md5}",  # of the file MD5SUM beside it
            ),
        ),
        by_hand=f"{archive}.tar.gz, or the .fvecs and .ivecs files in it, from {_TEXMEX_PAGE}",
    )


def _mnist(name: str, what: str, root: str, md5s: tuple[str, str], elsewhere: tuple[str, ...], **terms: str) -> Entry:
    names = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")
    return Entry(
        name=name,
        description=f"{what} of 28×28 pixels; the 10,000 test pictures are queries, the 60,000 training pictures the "
        "base, and 10,000 of these are the training set",
        layout="idx",
        dimension=784,
        rows=70_000,
        split=Split(train=10_000, base=60_000, queries=10_000),
        files=tuple(
            RemoteFile(url=root + file, name=file, checksum=f"md5:{md5}") for file, md5 in zip(names, md5s, strict=True)
        ),
        by_hand=f"{names[0]} and {names[1]} from {root}, or {name}-784-euclidean.hdf5 of ann-benchmarks",
        elsewhere=elsewhere,
        **terms,
    )


_ENTRIES = (
    Entry(
        name="digits",
        description="1,797 handwritten digits of 8×8 pixels that ship with scikit-learn; "
        "300 are queries, the others are the base and also the training set",
        layout="digits",
        dimension=64,
        rows=1_797,
        split=Split(train=None, base=1_497, queries=300),
        source="sklearn.datasets.load_digits; https://archive.ics.uci.edu/dataset/80",
        licence="CC BY 4.0 (UCI)",
        citation="E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits. "
        "UCI Machine Learning Repository, 1998, doi:10.24432/C50P49",
    ),
    Entry(
        name="photos",
        description="SIFT features, with their patches, of the photographs that ship inside scikit-image and "
        "scikit-learn; split by photograph, computed once and kept in the cache",
        layout="photos",
        dimension=128,
        rows=0,
        split=Split(train=None, base=0, queries=0),
        source="photographs of the installed scikit-image and scikit-learn; terms in skimage/data/README.txt and "
        "sklearn/datasets/images/README.txt",
        licence="of each photo",
        citation="D. Lowe: Distinctive Image Features from Scale-Invariant Keypoints. "
        "International Journal of Computer Vision 60(2), 2004, 91–110",
    ),
    _texmex(
        "siftsmall",
        "siftsmall",
        "ANN_SIFT10K: SIFT features of photographs",
        128,
        (25_000, Split(train=None, base=10_000, queries=100)),
        "5.1 MB",
        "0b8324a7a82d7f2663d7dcbd57642df7",
    ),
    _texmex(
        "sift1m",
        "sift",
        "ANN_SIFT1M: SIFT features of photographs",
        128,
        (100_000, Split(train=10_000, base=1_000_000, queries=10_000)),
        "161 MB",
        "b23d1b3b2ee8469d819b61ca900ef0ed",
    ),
    _texmex(
        "gist1m",
        "gist",
        "ANN_GIST1M: GIST features of photographs, by another program than data build --descriptor gist",
        960,
        (500_000, Split(train=10_000, base=1_000_000, queries=1_000)),
        "2.6 GB",
        "31185e0f00854f74d27e8ad8d52628a9",
    ),
    Entry(
        name="sift10m",
        description="SIFT features of Caltech-256, with patches; of 11,164,866 a seeded draw gives 10,000 queries, "
        "10,000 to learn from and a base of 10,000,000, no vector in two of them",
        layout="sift10m",
        dimension=128,
        rows=11_164_866,
        split=Split(train=10_000, base=10_000_000, queries=10_000),
        source="https://archive.ics.uci.edu/dataset/353/sift10m",
        licence="CC BY 4.0 (UCI)",
        citation="X. Fu, B. McCane, S. Mills, M. Albert: NOKMeans: Non-Orthogonal K-means Hashing. "
        "Asian Conference on Computer Vision, 2014; UCI Machine Learning Repository, doi:10.24432/C5S603",
        download="some GB",
        files=(RemoteFile(url="https://archive.ics.uci.edu/static/public/353/sift10m.zip", name="sift10m.zip"),),
        by_hand="sift10m.zip, or the SIFT10Mfeatures.mat in it, from https://archive.ics.uci.edu/dataset/353/sift10m",
    ),
    Entry(
        name="nus-wide",
        description="128-D wavelet texture of 269,648 pictures of Flickr; a seeded draw gives 10,000 queries, the "
        "other 259,648 are the base, and 10,000 of these are the training set",
        layout="nus-wide",
        dimension=128,
        rows=269_648,
        split=Split(train=10_000, base=259_648, queries=10_000),
        source="https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html",
        licence=_SEE_SOURCE,
        citation="T.-S. Chua, J. Tang, R. Hong, H. Li, Z. Luo, Y. Zheng: NUS-WIDE: A Real-World Web Image Database "
        "from National University of Singapore. ACM International Conference on Image and Video Retrieval, 2009",
        download=_SEE_SOURCE,
        by_hand="Normalized_WT.dat, or Train_Normalized_WT.dat and Test_Normalized_WT.dat, out of the low-level "
        "features (a .rar file) linked from "
        "https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html",
    ),
    _mnist(
        "fashion-mnist",
        "grey pictures of clothes",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "bef4ecab320f06d8554ea6380940ec79"),
        ("/usr/share/datasets/fashion-mnist",),  # the Debian package dataset-fashion-mnist
        source="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        citation="H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine "
        "Learning Algorithms. arXiv:1708.07747, 2017",
        download="31 MB",
    ),
    _mnist(
        "mnist",
        "handwritten digits",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ("f68b3c2dcbeaaa9fbdd348bbdeb89873", "9fb629c4189551a2d022fa330f9573f3"),
        (),
        source="http://yann.lecun.com/exdb/mnist/",
        licence=_SEE_SOURCE,
        citation="Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: Gradient-based learning applied to document recognition. "
        "Proceedings of the IEEE 86(11), 1998, 2278–2324",
        download="12 MB",
    ),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
