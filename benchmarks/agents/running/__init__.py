"""Jobs: in which process they run, with which packages, on which machine, and what is done."""
