"""MLflow keeps a copy of this file with every registered version and runs it to load the model.

So it must never need anything but the one name below: where the network's classes live may change at any time.
"""

from mlflow.models import set_model

from shift_diffusion.serving.picture_model import PictureModel

set_model(PictureModel())
