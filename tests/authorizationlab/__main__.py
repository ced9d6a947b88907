"""Records the responses of the broker whose address is given."""

from __future__ import annotations

import json
import sys

from authorizationlab import observe

json.dump(observe(sys.argv[1]), sys.stdout, indent=1, sort_keys=True)
