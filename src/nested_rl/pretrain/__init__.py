"""How the shipped nano models are made, from nothing but the task families and a seed."""
