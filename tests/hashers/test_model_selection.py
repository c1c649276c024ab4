"""How candidates are compared: which are tried, which are dropped, and that the best of all is selected."""

from types import SimpleNamespace

import numpy as np
import pytest

from autojacobin.autoencoder import OutOfTimeError
from autojacobin.codes import Codes
from autojacobin.evaluation import ground_truth, measure
from autojacobin.hashers import model_selection
from autojacobin.hashers.autoencoders.autobin import initial_network
from autojacobin.hashers.model_selection import (
    RESULTS,
    Options,
    Recipe,
    Selection,
    behind,
    held_out_score,
    m_recall_of_bits,
    results_table,
    split,
)
from autojacobin.search import hamming_topk
from tests.hashers.methods import digits

PUBLISHED = {"init": "random", "alpha": 0.1, "jacobian_weight": 1.0, "energy": 0.98}


def options(**changes):
    given = {
        "inits": INITS, "alphas": (0.01, 0.1), "alphas_without_jacobian": (0.003, 0.3),
        "jacobian_weights": (0.0, 1.0), "energies": (0.98, 0.8), "n_epochs": 5, "n_epochs_without_jacobian": 15,
        "baseline": Recipe(**PUBLISHED),
    }  # fmt: skip
    return Options(**{**given, **changes})


STEPS_PER_EPOCH = 9
# of 400 queries, for each kind of network, so that 0.02 is three standard errors of a difference
NOISE = np.random.default_rng(5).normal(0, 0.1, (4, 400))
NOISE -= NOISE.mean(axis=1, keepdims=True)
INITS = ("random", "itq", "okmeans")


def run(score_of, progress=None, steps_per_epoch=STEPS_PER_EPOCH, **changes):
    """Choose among stand-ins for networks: a name, a recipe and a number of steps. Queries differ in both kinds."""
    reports = []

    def train(network, recipe, n_epochs, rng):
        for step in range(n_epochs * steps_per_epoch):
            yield (network[0], recipe, step + 1), {"step": step}

    def score(network):
        return score_of(network) + NOISE[3 if heavy(network) else INITS.index(network[0])]

    def report(stage, done, total):
        reports.append((done, total))
        if progress is not None:
            progress(done)

    selection = Selection(options(**changes), train, score, 0, steps_per_epoch, report)
    chosen = selection.run(lambda init: (init, None, 0))
    return chosen, reports


def heavy(network):
    return network[1] is not None and network[1].jacobian_weight > 0


def rows(choice):
    return [dict(zip(RESULTS, row, strict=True)) for row in choice.rows]


def table(choice):
    return results_table(RESULTS, choice.rows)


def preferred(network):
    """Far less than any noise, but the paper's start is not among the best two."""
    return {"itq": 2e-6, "okmeans": 1e-6, "random": 0}[network[0]]


def trained(network):
    return network[2] / STEPS_PER_EPOCH


def test_the_selected_network_scores_no_lower_than_anything_that_was_scored():
    rng = np.random.default_rng(0)
    for _ in range(50):
        choice, told = run(lambda network: float(rng.normal()))
        best = table(choice)["m_recall"].max()
        chosen = [row for row in rows(choice) if row["chosen"]]
        assert len(chosen) == 1
        assert chosen[0]["m_recall"] == best == pytest.approx(choice.found.mean())
        assert (chosen[0]["init"], chosen[0]["n_steps"]) == (choice.recipe.init, len(choice.steps))
        assert choice.network[0] == choice.recipe.init
        assert choice.network[2] == len(choice.steps)
        assert choice.best_start == table(choice)["m_recall"][table(choice)["n_steps"] == 0].max()
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        assert told[0][0] == 0  # before the starts are made
        assert told[-1][0] == told[-1][1] >= told[-2][0]


def test_the_initial_networks_are_candidates():
    choice, _ = run(lambda network: -trained(network) + (network[0] == "okmeans"))
    assert (choice.recipe.init, choice.steps) == ("okmeans", ())


@pytest.mark.parametrize("best", [3 / STEPS_PER_EPOCH, 1, 2])
def test_a_network_that_was_better_after_fewer_steps_is_selected_as_it_was_then(best):
    choice, _ = run(lambda network: -abs(trained(network) - best) + 0.1 * (network[0] == "itq"))
    assert len(choice.steps) == best * STEPS_PER_EPOCH
    assert choice.recipe.init == "itq"


def test_training_that_improves_the_score_runs_all_epochs():
    choice, _ = run(lambda network: trained(network) * (1 + heavy(network)) * 10)
    assert (len(choice.steps), choice.recipe.jacobian_weight) == (15 * STEPS_PER_EPOCH, 0.0)
    choice, _ = run(lambda network: trained(network) + 100 * heavy(network))
    assert (len(choice.steps), choice.recipe.jacobian_weight) == (5 * STEPS_PER_EPOCH, 1.0)


def steps_by_kind(choice):
    """How often networks were scored after each number of steps, without the Jacobian term and with it."""
    counts = ({}, {})
    for row in rows(choice):
        if row["n_steps"] and row["energy"] != 0.8:
            kind = counts[int(row["jacobian_weight"])]
            kind[int(row["n_steps"])] = kind.get(int(row["n_steps"]), 0) + 1
    return counts


def test_weak_candidates_are_dropped():
    choice, _ = run(lambda network: 0.5 + 1e-4 * trained(network) + preferred(network))
    light, with_jacobian = steps_by_kind(choice)
    assert light == {3: 6, 9: 2, 18: 1, 36: 1, 135: 1}
    assert with_jacobian == {3: 5, 9: 2, 18: 1, 45: 1}
    looked = rows(choice)
    assert {row["init"] for row in looked if row["n_steps"] > 3} == {"itq"}
    paper = [row for row in looked if (row["init"], row["jacobian_weight"]) == ("random", 1)]
    assert [(row["alpha"], row["n_steps"]) for row in paper] == [(0.1, 3)]
    assert [(row["init"], row["n_epochs"]) for row in looked if row["energy"] == 0.8] == [("itq", 5)]


@pytest.mark.parametrize(("gap", "tried"), [(0.005, {"itq", "okmeans", "random"}), (0.1, {"itq"})])
def test_the_jacobian_term_is_tried_only_from_starts_that_are_not_behind_beyond_the_noise(gap, tried):
    choice, _ = run(lambda network: 0.5 - gap * (network[0] != "itq") + preferred(network))
    assert {row["init"] for row in rows(choice) if row["jacobian_weight"] == 1} == tried


def test_a_candidate_that_more_training_makes_worse_is_dropped():
    choice, _ = run(lambda network: min(trained(network), 2 - trained(network)) + heavy(network) + preferred(network))
    light, with_jacobian = steps_by_kind(choice)
    assert light == {3: 6, 9: 2, 18: 1}
    assert with_jacobian == {3: 5, 9: 2, 18: 1}
    assert len(choice.steps) == STEPS_PER_EPOCH


@pytest.mark.parametrize(("gap", "stages"), [(0.004, {3: 5, 9: 2, 18: 1, 45: 1}), (0.1, {3: 5})])
def test_the_jacobian_term_costs_three_steps_where_it_is_behind_beyond_the_noise(gap, stages):
    choice, _ = run(lambda network: 0.5 - gap * heavy(network) + 1e-5 * trained(network) + preferred(network))
    assert steps_by_kind(choice)[1] == stages
    assert any(row["energy"] == 0.8 for row in rows(choice)) == (gap < 0.02)


def test_a_difference_is_compared_with_its_own_noise():
    """All queries are harder for one network than for the other, by little: that is no accident."""
    rng = np.random.default_rng(0)
    best = rng.uniform(size=200)
    assert behind(best - 0.001, best)
    assert not behind(best + 0.001, best)
    assert not behind(best, best)
    assert not behind(best - 0.001 + rng.normal(0, 0.1, 200), best)


def test_out_of_time_selects_the_best_so_far():
    for allowed in (0, 1, 7, 30, 300, 2000):

        def stop(done, allowed=allowed):
            if done >= allowed:
                raise OutOfTimeError

        choice, _ = run(lambda network: trained(network) + heavy(network), progress=stop)
        assert table(choice)["m_recall"].max() == pytest.approx(choice.found.mean())
        assert table(choice)["chosen"].sum() == 1
        assert choice.network[2] == len(choice.steps)
        if allowed == 0:
            assert table(choice)["init"].tolist() == ["random"]


def test_a_network_of_all_points_is_taken_unless_it_is_worse():
    choice, _ = run(lambda network: 0.5 + 0.1 * trained(network) * (not heavy(network)))
    compared = choice.found
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.1, len(compared))
    noise -= noise.mean()
    assert choice.accepts(compared, start=compared - 0.5)
    assert choice.accepts(compared - 0.01 + noise, start=compared - 0.5)  # within the noise
    assert not choice.accepts(compared - 0.05 + noise, start=compared - 0.5)  # beyond it
    assert not choice.accepts(compared, start=compared + 0.01)  # behind the network that it was trained from
    assert not choice.accepts(np.full(len(compared), choice.best_start - 0.001), start=compared - 0.5)


def test_the_network_of_all_points_has_a_row_of_its_own():
    choice, _ = run(lambda network: trained(network))
    n = len(table(choice)["init"])
    taken = results_table(RESULTS, choice.with_row(choice.found, 15, 140, chosen=True))
    assert {name: len(column) for name, column in taken.items()} == dict.fromkeys(RESULTS, n + 1)
    assert (taken["chosen"].sum(), taken["chosen"][-1], taken["n_steps"][-1]) == (1, 1, 140)
    assert (taken["init"][-1], taken["alpha"][-1]) == (choice.recipe.init, choice.recipe.alpha)
    refused = results_table(RESULTS, choice.with_row(choice.found, 15, 140, chosen=False))
    assert np.array_equal(refused["chosen"][:-1], table(choice)["chosen"])
    assert refused["chosen"][-1] == 0
    assert table(choice)["chosen"].sum() == 1
    for name, column in table(choice).items():
        assert taken[name].dtype.kind == column.dtype.kind


def test_only_the_options_are_tried():
    choice, _ = run(
        trained, inits=("itq",), alphas=(0.2,), alphas_without_jacobian=(0.2,), energies=(0.9,), baseline=None
    )
    looked = table(choice)
    assert set(looked["init"]) == {"itq"}
    assert set(looked["alpha"][looked["n_epochs"] > 0]) == {0.2}
    assert set(looked["energy"][looked["jacobian_weight"] == 1]) == {0.9}
    none, _ = run(trained, n_epochs=0, n_epochs_without_jacobian=0)
    assert table(none)["n_epochs"].tolist() == [0, 0, 0]


def test_the_held_out_points_are_a_tenth_or_a_quarter_of_few():
    for n, expected in ((500, 125), (2000, 500), (6000, 1000), (12_000, 1200), (30_000, 2000)):
        asking, searched = split(n, np.random.RandomState(0))
        assert len(asking) == expected
        assert sorted([*asking, *searched]) == list(range(n))


def test_the_score_is_the_m_recall_by_definition():
    X = digits()[:400].astype(np.float64)
    queries, base = X[:40], X[40:]
    network = initial_network(X, 16, "itq", np.random.RandomState(0))
    bits = [points @ network.W1.T + network.b1 >= 0 for points in (queries, base)]
    distances = (bits[0][:, None] != bits[1][None]).sum(axis=2)
    retrieved = np.argsort(distances, axis=1, kind="stable")[:, :10]
    truth = ground_truth(base, queries, 5)
    found = [[len(set(truth[q]) & set(retrieved[q, : i + 1])) / 5 for i in range(10)] for q in range(40)]
    score = held_out_score(queries, base, 5, None, lambda net, points: points @ net.W1.T + net.b1 >= 0)
    assert score(network) == pytest.approx(np.mean(found, axis=1))


def test_stages_double_and_end_with_all_epochs():
    assert [model_selection.stages(n, 1) for n in (1, 2, 5, 15)] == [[1], [1, 2], [1, 2, 5], [1, 2, 4, 15]]
    assert model_selection.stages(5, 4) == [3, 4, 8, 20]
    assert model_selection.stages(1, 3) == [3]


def test_the_depth_of_the_comparison_is_the_one_that_was_asked_for():
    X = digits()[:400].astype(np.float64)
    network = initial_network(X, 16, "itq", np.random.RandomState(0))

    def bits(net, points):
        return points @ net.W1.T + net.b1 >= 0

    distances = (bits(network, X[:40])[:, None] != bits(network, X[40:])[None]).sum(axis=2)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, 0]
    truth = ground_truth(X[40:], X[:40], 5)
    found = np.mean([nearest[query] in truth[query] for query in range(40)]) / 5
    assert held_out_score(X[:40], X[40:], 5, 1, bits)(network).mean() == pytest.approx(found)


def test_reduced_points_are_scored_by_their_neighbours_in_all_dimensions():
    rng = np.random.default_rng(0)
    queries, base = rng.normal(size=(20, 6)), rng.normal(size=(80, 6))
    sides = SimpleNamespace(W1=np.eye(6)[:3])

    def bits(network, X):
        return X @ network.W1[:, : X.shape[1]].T >= 0

    whole = held_out_score(queries, base, 3, 10, bits)(sides)
    reduced = held_out_score(queries[:, :3], base[:, :3], 3, 10, bits, (queries, base))(sides)
    assert np.array_equal(whole, reduced)
    assert not np.array_equal(whole, held_out_score(queries[:, :3], base[:, :3], 3, 10, bits)(sides))


@pytest.mark.parametrize("depth", [1, 7, 50])
def test_the_score_by_arrays_is_that_of_a_search(depth):
    rng = np.random.default_rng(0)
    query_bits, base_bits = rng.random((30, 9)) < 0.5, rng.random((200, 9)) < 0.5  # few bits, so that many are equal
    truth = np.array([rng.choice(200, 6, replace=False) for _ in range(30)])
    _, ids = hamming_topk(Codes.from_bits(query_bits), Codes.from_bits(base_bits), depth)
    expected = measure(f"m-recall@{depth}", ids, truth, 6).values
    assert expected.max() > 0
    assert np.array_equal(m_recall_of_bits(query_bits, base_bits, truth, depth), expected)


def test_many_points_are_scored_by_a_search_and_few_by_arrays(monkeypatch):
    rng = np.random.default_rng(0)
    queries, base = rng.normal(size=(20, 6)), rng.normal(size=(80, 6))
    signs = SimpleNamespace()
    score = held_out_score(queries, base, 3, 10, lambda _, X: X >= 0)(signs)
    monkeypatch.setattr(model_selection, "_FEW_DISTANCES", 0)
    searched = held_out_score(queries, base, 3, 10, lambda _, X: X >= 0)
    monkeypatch.setattr(model_selection, "m_recall_of_bits", None)
    assert np.array_equal(searched(signs), score)
