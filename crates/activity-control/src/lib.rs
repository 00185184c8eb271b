//! The life of an activity: create, preheat, open, pause, close, audit.
