"""Random samples of the vectors in many files, for training."""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.parallel import Progress
from autojacobin.core.sampling import as_random_state
from autojacobin.core.vectors import as_floats
from autojacobin.jobs.inputs import Patterns, Piece, naming_file, open_piece, survey
from autojacobin.search.arguments import as_count

__all__ = ["draw_sample"]


def draw_sample(
    patterns: Patterns,
    n: SupportsIndex,
    *,
    random_state: Any = 0,
    progress: Progress | None = None,
) -> npt.NDArray[Any]:
    """Draw ``n`` vectors from many files, uniformly and without replacement.

    Rows are counted by the headers of the files, and drawn before any vector is read. Then each file is opened once,
    and only the drawn rows are read where the format allows it. So the sample alone has to fit into memory.

    Parameters
    ----------
    patterns : path, pattern, or several of them
        Files in any format of :func:`~autojacobin.datasets.open_vectors`: paths and patterns such as ``base/*.npy``,
        local or at an address of fsspec such as ``s3://bucket/*.parquet``.
    n : int
        Vectors to draw, from 1 to the number of all vectors.
    random_state : int, RandomState or None
        Seed; the same seed and files give the same sample.
    progress : callable, optional
        Called as ``progress("sampling", done, total)`` with numbers of files.

    Returns
    -------
    sample : array of float32, or of float64 if a file has them, shape (n, n_features)
        In the order of the files and of their rows.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from autojacobin.datasets import write_vectors
    >>> from autojacobin.jobs.sampling import draw_sample
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in range(3):
    ...         write_vectors(f"{folder}/part-{part}.fvecs", np.full((100, 2), part))
    ...     draw_sample(f"{folder}/*.fvecs", 4, random_state=1).shape
    (4, 2)
    """
    inputs = survey(patterns)
    wanted = as_count("n", n, inputs.rows, "the number of vectors in the files")
    rng = as_random_state(random_state)
    from sklearn.utils.random import sample_without_replacement  # only here: scikit-learn takes a second to load

    drawn = np.sort(sample_without_replacement(inputs.rows, wanted, random_state=rng).astype(np.int64))
    wide = inputs.dtype.kind == "f" and inputs.dtype.itemsize >= 8
    sample = np.empty((wanted, inputs.width), dtype=np.float64 if wide else np.float32)
    edges = np.searchsorted(drawn, inputs.offsets)
    for number, file in enumerate(inputs.files):
        here = slice(edges[number], edges[number + 1])
        rows = drawn[here] - inputs.offsets[number]
        if len(rows):
            piece = Piece(file.path, int(rows[0]), int(rows[-1]) + 1)
            with naming_file(piece), open_piece(piece) as (read, first):
                sample[here] = as_floats(read(rows - first).astype(inputs.dtype, copy=False))
        if progress is not None:
            progress("sampling", number + 1, len(inputs.files))
    return sample
