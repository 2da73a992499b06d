"""scikit-learn estimators: `PrivateClassifier(epsilon=1.0, delta=1e-5).fit(X, y)`."""

try:
    import sklearn
except ImportError as error:
    raise ImportError("quietgrad.sklearn needs scikit-learn: pip install 'quietgrad[sklearn]'.") from error

from quietgrad._linear_probe.rule import PrivacyWarning
from quietgrad.sklearn.classifier import PrivateClassifier
from quietgrad.sklearn.regressor import PrivateRegressor

__all__ = ["PrivacyWarning", "PrivateClassifier", "PrivateRegressor"]
del sklearn
