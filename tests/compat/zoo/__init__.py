"""Model code and scripts in the style of public TensorFlow models for Cerebras systems, releases 1.2 to 1.8.

We wrote this code from the list of calls that such models make. Nothing here may depend on our package.
"""
