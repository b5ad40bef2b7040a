"""Every row of the behaviours, as tests named by the row's id."""
