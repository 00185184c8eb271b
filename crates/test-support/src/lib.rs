//! Private servers, a fault proxy and process handles for tests.
