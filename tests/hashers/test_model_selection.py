"""How candidates are compared: which are tried, which are dropped, and that the best of all is selected."""

import numpy as np
import pytest

from autojacobin.evaluation import ground_truth
from autojacobin.hashers import model_selection
from autojacobin.hashers.autobin import initial_network
from autojacobin.hashers.model_selection import Options, Recipe, held_out_score, select_recipe, split
from tests.hashers.methods import digits

PUBLISHED = {"init": "random", "alpha": 0.1, "jacobian_weight": 1.0, "energy": 0.98}


def options(**changes):
    given = {
        "inits": ("random", "itq", "okmeans"), "alphas": (0.01, 0.1), "alphas_without_jacobian": (0.003, 0.3),
        "jacobian_weights": (0.0, 1.0), "energies": (0.98, 0.8), "n_epochs": 5, "n_epochs_without_jacobian": 15,
        "baseline": Recipe(**PUBLISHED),
    }  # fmt: skip
    return Options(**{**given, **changes})


def run(score_of, **changes):
    """Choose among stand-ins for networks: a name and the list of what was done to it."""
    told = []
    choice = select_recipe(
        options(**changes),
        lambda init: (init, ()),
        lambda network, recipe, epochs, rng: (network[0], (*network[1], (recipe, epochs))),
        score_of,
        seed=0,
        progress=lambda stage, done, total: told.append((done, total)),
    )
    return choice, told


def rows(choice):
    return [dict(zip(choice.results, row, strict=True)) for row in zip(*choice.results.values(), strict=True)]


def trained(network):
    return sum(epochs for _, epochs in network[1])


def test_the_selected_recipe_scores_no_lower_than_anything_that_was_scored():
    rng = np.random.default_rng(0)
    for _ in range(50):
        choice, told = run(lambda network: float(rng.normal()))
        best = choice.results["m_recall"].max()
        chosen = [row for row in rows(choice) if row["chosen"]]
        assert len(chosen) == 1
        assert chosen[0]["m_recall"] == best
        assert (chosen[0]["init"], chosen[0]["n_epochs"]) == (choice.recipe.init, choice.n_epochs)
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        assert told[0][0] == 0  # before the starts are made
        assert told[-1][0] == told[-1][1] >= told[-2][0]


def test_the_initial_networks_are_candidates():
    choice, _ = run(lambda network: -trained(network) + (network[0] == "okmeans"))
    assert (choice.recipe.init, choice.n_epochs) == ("okmeans", 0)


def test_a_network_that_was_better_after_fewer_epochs_is_selected_as_it_was_then():
    choice, _ = run(lambda network: -abs(trained(network) - 2) + 0.1 * (network[0] == "itq"))
    assert choice.n_epochs == 2
    assert choice.recipe.init == "itq"


def test_training_that_improves_the_score_runs_all_epochs():
    choice, _ = run(lambda network: trained(network) * (1 + any(r.jacobian_weight for r, _ in network[1])) * 10)
    assert (choice.n_epochs, choice.recipe.jacobian_weight) == (15, 0.0)
    choice, _ = run(lambda network: trained(network) + 100 * any(r.jacobian_weight for r, _ in network[1]))
    assert (choice.n_epochs, choice.recipe.jacobian_weight) == (5, 1.0)


def test_weak_candidates_are_dropped_and_the_papers_recipe_is_always_tried():
    choice, _ = run(lambda network: {"itq": 2, "okmeans": 1, "random": 0}[network[0]] + 1e-4 * trained(network))
    looked = rows(choice)
    light = [row for row in looked if row["jacobian_weight"] == 0]
    heavy = [row for row in looked if row["jacobian_weight"] == 1]
    assert [sum(row["n_epochs"] == epochs for row in light) for epochs in (1, 2, 4, 15)] == [6, 2, 1, 1]
    assert {row["init"] for row in light if row["n_epochs"] > 1} == {"itq"}
    assert [sum(row["n_epochs"] == epochs and row["energy"] == 0.98 for row in heavy) for epochs in (1, 2, 5)] == [
        5,
        2,
        1,
    ]
    assert {row["init"] for row in heavy if row["alpha"] == 0.1} == {"itq", "okmeans", "random"}
    assert [(row["init"], row["n_epochs"]) for row in heavy if row["energy"] == 0.8] == [("itq", 5)]


def test_candidates_with_the_jacobian_term_that_are_far_behind_are_dropped_after_the_first_stage():
    def score(network):
        return 0.5 - 0.02 * any(recipe.jacobian_weight for recipe, _ in network[1]) + 0.001 * trained(network)

    heavy = [row for row in rows(run(score)[0]) if row["jacobian_weight"] == 1]
    assert {row["n_epochs"] for row in heavy} == {1}
    assert {row["energy"] for row in heavy} == {0.98}


def test_only_the_options_are_tried():
    choice, _ = run(
        trained, inits=("itq",), alphas=(0.2,), alphas_without_jacobian=(0.2,), energies=(0.9,), baseline=None
    )
    looked = choice.results
    assert set(looked["init"]) == {"itq"}
    assert set(looked["alpha"][looked["n_epochs"] > 0]) == {0.2}
    assert set(looked["energy"][looked["jacobian_weight"] == 1]) == {0.9}
    none, _ = run(trained, n_epochs=0, n_epochs_without_jacobian=0)
    assert none.results["n_epochs"].tolist() == [0, 0, 0]


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
    assert score(network) == pytest.approx(np.mean(found))


def test_stages_double_and_end_with_all_epochs():
    assert [list(model_selection._stages(n)) for n in (1, 2, 5, 15)] == [[1], [1, 2], [1, 2, 5], [1, 2, 4, 15]]


def test_the_depth_of_the_comparison_is_the_one_that_was_asked_for():
    X = digits()[:400].astype(np.float64)
    network = initial_network(X, 16, "itq", np.random.RandomState(0))

    def bits(net, points):
        return points @ net.W1.T + net.b1 >= 0

    distances = (bits(network, X[:40])[:, None] != bits(network, X[40:])[None]).sum(axis=2)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, 0]
    truth = ground_truth(X[40:], X[:40], 5)
    found = np.mean([nearest[query] in truth[query] for query in range(40)]) / 5
    assert held_out_score(X[:40], X[40:], 5, 1, bits)(network) == pytest.approx(found)
