"""Ways into other packages. Importing this imports none of them."""
