import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.codes import Codes
from autojacobin.core.counts import as_count, typed_number
from autojacobin.datasets import open_vectors, write_vectors
from autojacobin.errors import DataError, DataTypeError
from autojacobin.search import hamming_radius


@given(value=st.integers(-20, 20), least=st.integers(-10, 10), most=st.none() | st.integers(-10, 10))
def test_integers_within_the_limits_are_converted_and_others_refused(value, least, most):
    if value >= least and (most is None or value <= most):
        assert as_count("n", np.int64(value), most, least=least) == value
    else:
        expected = f"of at least {least}" if most is None else f"from {least} to {most}"
        with pytest.raises(DataError, match=f"^n must be an integer {expected}, got {value}$"):
            as_count("n", value, most, least=least)


@pytest.mark.parametrize("value", [1.0, "1", None, [1]])
def test_other_types_are_refused(value):
    with pytest.raises(DataTypeError, match="n must be an integer of at least 1, got"):
        as_count("n", value)


def test_booleans_are_no_counts_anywhere(tmp_path):
    codes = Codes.from_bits([[1, 0]])
    write_vectors(tmp_path / "a.npy", np.eye(2))
    with pytest.raises(DataError, match="n_bits must be an integer of at least 1, got True"):
        Codes(np.ones((1, 1), dtype=np.uint8), True)
    with pytest.raises(DataError, match="radius must be an integer of at least 0, got True"):
        hamming_radius(codes, codes, True)
    with open_vectors(tmp_path / "a.npy") as vectors, pytest.raises(DataError, match="rows must be .*, got True"):
        vectors.blocks(True)


@given(
    st.integers(0, 10**30) | st.text(max_size=4) | st.sampled_from(["９", "٣", "1_0", "+1", "-1", " 1", "1\n", "²", ""])
)
def test_a_typed_number_is_ascii_digits_alone(value):
    text = str(value)
    digits = bool(text) and set(text) <= set("0123456789")
    assert typed_number(text) == (int(text) if digits else None)
