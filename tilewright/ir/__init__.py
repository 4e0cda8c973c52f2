from tilewright.ir import printer as printer  # so that functions have a text wherever they come from
