//! What every service binary shares: settings, bootstrap, health, drain.
