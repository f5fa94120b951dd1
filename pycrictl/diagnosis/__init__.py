"""Why a pod is not running, and what is wrong with a node: facts in, ranked findings out."""
