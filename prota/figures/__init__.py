"""Figures of runs and models; each module collects the numbers of one figure and draws it."""
