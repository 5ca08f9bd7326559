"""One module per row of the goals; `registry` names them all."""
