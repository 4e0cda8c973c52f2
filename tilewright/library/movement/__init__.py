"""Movement of data: permutes, slices, gathers, scatters."""
