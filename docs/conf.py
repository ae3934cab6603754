"""The site: `make docs` builds it into out/site; any warning is an error. Its sources are the repository's Markdown."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["COLUMNS"] = "110"

project = "optcc"
author = "the optcc authors"
copyright = ""
html_show_copyright = False
root_doc = "docs/index"

# Seen from the repository's root, so that links between docs, proofs and sources are the same as on a code host.
include_patterns = ["docs/**/*.md", "docs/*.md", "proofs/README.md", "proofs/written/*.md", "notebooks/*.ipynb",
                    "examples/README.md", "CONTRIBUTING.md", "CHANGELOG.md"]  # fmt: skip
exclude_patterns = [".*", "out", "build", "dist"]

# The navigation: groups of pages. A pattern stands for the pages that fit and that no other line names. A page in no
# group fails the build.
groups = {
    "Start": ["docs/tutorial", "docs/assumptions", "docs/glossary"],
    "How to": ["docs/howto-operator", "docs/howto-slow-job", "docs/howto-ccl-developer", "docs/howto-researcher",
               "docs/communicator", "docs/rank-lost", "docs/nccl", "docs/pytorch", "docs/howto-*",
               "docs/running", "docs/topologies", "docs/calibrate", "docs/monitoring", "docs/schedulers", "docs/sweeps",
               "docs/exports", "docs/planning-at-failure"],
    "How it works": ["docs/bounds", "docs/certificates", "docs/schedules", "docs/baselines", "docs/plan-format",
                     "docs/simulator", "docs/failover", "docs/hardware", "docs/verbs", "docs/fabric",
                     "docs/lab", "docs/native-engine", "docs/diagnose", "docs/related"],
    "Reference": ["docs/reference/*", "examples/README", "CONTRIBUTING", "CHANGELOG"],
    "Figures": ["docs/evaluation", "docs/failover-*", "docs/torch-tests", "docs/bench-*"],
    "Proofs and notebooks": ["proofs/README", "proofs/written/*", "notebooks/*"],
}  # fmt: skip

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "tools.docs_site", "tools.docs_docstrings"]
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]  # the notebooks' formulas
html_math_renderer = "mathml"  # browsers draw it, nothing is fetched (tools/docs_site.py)
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch"]  # installed or not, the site is the same

html_theme = "furo"
html_title = "optcc"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_last_updated_fmt = None
