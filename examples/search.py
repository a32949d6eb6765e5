"""Index a folder and search it."""

import prota

lib = prota.Library("lib")
lib.index("clips", fps=2, shots=True)
for hit in lib.search("a cup of coffee", k=5):
    print(hit.path, hit.start, hit.end, hit.probability)
