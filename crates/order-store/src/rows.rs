//! From rows and columns to domain values, and back.
