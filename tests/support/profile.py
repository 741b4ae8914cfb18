"""At which size tests run the labs."""

import os

PROFILE = os.environ.get("LABKIT_TEST_PROFILE", "tiny")
ENVIRON = {**os.environ, "LABKIT_PROFILE": PROFILE}
