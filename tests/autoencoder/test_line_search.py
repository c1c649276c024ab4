"""The line search: both Wolfe conditions where they can be had, and never a higher cost whatever the line does."""

import math

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.autoencoder import Batch, Objective
from autojacobin.autoencoder.line_search import LinePoint, strong_wolfe
from tests.autoencoder.test_objective import problem

C1, C2 = 1e-4, 0.9


def along(function, gradient, x, direction):
    """φ(t) = function(x + t direction), and its point at 0."""

    def line(t):
        at = x + t * direction
        return LinePoint(t, float(function(at)), float(gradient(at) @ direction))

    return line, line(0.0)


def assert_strong_wolfe(point, start):
    assert point.t > 0
    assert point.value <= start.value + C1 * point.t * start.slope
    assert abs(point.slope) <= C2 * abs(start.slope)


@given(st.integers(0, 2**31), st.floats(1e-8, 1e8))
def test_quadratic(seed, first_step):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(5, 5))
    A = A @ A.T + 0.1 * np.eye(5)
    x = rng.normal(size=5)
    line, start = along(lambda v: 0.5 * v @ A @ v, lambda v: A @ v, x, -(A @ x))
    point, evaluations = strong_wolfe(line, start, first_step)
    assert_strong_wolfe(point, start)
    assert evaluations <= 25


@given(st.integers(0, 2**31), st.floats(1e-6, 1e2))
def test_rosenbrock(seed, first_step):
    x = np.random.default_rng(seed).uniform(-2, 2, 4)
    gradient = scipy.optimize.rosen_der
    line, start = along(scipy.optimize.rosen, gradient, x, -gradient(x))
    if abs(start.slope) < 1e-12:
        return
    assert_strong_wolfe(strong_wolfe(line, start, first_step)[0], start)


@pytest.mark.parametrize("seed", range(20))
def test_the_real_objective(seed):
    network, batch = problem(30, 6, 4, 3, seed)
    objective = Objective(jacobian_weight=1.0)

    def function(theta):
        return sum(objective(network.with_vector(theta), batch)[0].values())

    def gradient(theta):
        return objective(network.with_vector(theta), batch)[1].to_vector()

    theta = network.to_vector()
    line, start = along(function, gradient, theta, -gradient(theta))
    for first_step in (1e-6, 1e-3, 1.0, 1e3):
        assert_strong_wolfe(strong_wolfe(line, start, first_step)[0], start)
    assert isinstance(batch, Batch)


def test_the_first_step_is_taken_when_it_will_do():
    line, start = along(lambda v: float(v @ v), lambda v: 2 * v, np.ones(3), -2 * np.ones(3))
    point, evaluations = strong_wolfe(line, start, 0.5)
    assert point.t == 0.5
    assert evaluations == 1


def test_the_payload_of_the_chosen_point_comes_back():
    def line(t):
        return LinePoint(t, (t - 3) ** 2, 2 * (t - 3), payload=f"at {t}")

    point, _ = strong_wolfe(line, line(0.0), 100.0)
    assert point.payload == f"at {point.t}"


odd_numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.floats(-1e6, 1e6),
    st.floats(-1e6, -1e-6),
    st.floats(1e-12, 1e12),
    st.lists(st.tuples(odd_numbers, odd_numbers), max_size=30),
)
def test_survives_any_line_and_never_goes_up(value, slope, first_step, answers):
    """A line that answers with arbitrary numbers, NaN and Inf among them."""
    script = iter(answers)

    def line(t):
        assert math.isfinite(t)
        assert t > 0
        return LinePoint(t, *next(script, (math.nan, math.inf)))

    start = LinePoint(0.0, value, slope)
    point, evaluations = strong_wolfe(line, start, first_step)
    assert point.usable
    assert point.value <= value
    assert evaluations <= 25


@given(st.floats(1e-3, 1e3), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_wall_of_nan_or_inf_is_backed_away_from(wall, beyond):
    """φ falls up to a wall, behind which the cost cannot be evaluated."""

    def line(t):
        return LinePoint(t, beyond, beyond) if t > wall else LinePoint(t, -t + t * t / (4 * wall), -1 + t / (2 * wall))

    point, _ = strong_wolfe(line, line(0.0), 10 * wall)
    assert 0 < point.t <= wall
    assert point.value < 0


@pytest.mark.parametrize(
    "start",
    [
        LinePoint(0.0, 1.0, 0.0),
        LinePoint(0.0, 1.0, 2.0),
        LinePoint(0.0, math.nan, -1.0),
        LinePoint(0.0, 1.0, -math.inf),
    ],
)
def test_a_start_that_leads_nowhere_is_given_back(start):
    def line(t):
        raise AssertionError("a direction that does not descend is not walked along")

    point, evaluations = strong_wolfe(line, start, 1.0)
    assert point is start
    assert evaluations == 0
