"""Asks somebody else."""

import urllib.request

print(urllib.request.urlopen("http://median.example/?" + input().replace(" ", "+")).read().decode())
