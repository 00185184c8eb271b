//! End-to-end tests against the built executables.
