"""A hasher as a part of scikit-learn: in a pipeline, under a grid search, before a classifier.

python examples/sklearn_pipeline.py
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from autojacobin import ITQ

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)

# A hasher scores itself: by the share of true neighbours that codes of held-out points find. No labels are needed.
hashing = Pipeline([("scale", StandardScaler(with_std=False)), ("hash", ITQ(random_state=0))])
search = GridSearchCV(hashing, {"hash__n_bits": [8, 16, 32]}, cv=3).fit(X_train)
for bits, score in zip(search.cv_results_["param_hash__n_bits"], search.cv_results_["mean_test_score"], strict=True):
    print(f"{bits:3d} bits: m-Recall {score:.3f}")

# And its bits are features for others: here the neighbours by Hamming distance vote for the digit.
best = search.best_estimator_
classifier = KNeighborsClassifier(5, metric="hamming").fit(best.transform(X_train), y_train)
by_pixels = KNeighborsClassifier(5).fit(X_train, y_train).score(X_test, y_test)
by_codes = classifier.score(best.transform(X_test), y_test)
print(
    f"digits told rightly: {by_codes:.3f} by {search.best_params_['hash__n_bits']} bits, {by_pixels:.3f} by 64 pixels"
)
