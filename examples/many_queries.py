"""Several queries at once, as rows of a table."""

import prota

lib = prota.Library("lib")
for results in lib.search(["a cat", "an orange flower"], k=3):
    print(results.to_dict()["moments"])
