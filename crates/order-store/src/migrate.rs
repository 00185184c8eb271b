//! The schema, embedded.
use secrecy::SecretString;

use crate::{Error, Store};

/// What migrating did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The schema's version now.
    pub version: u32,
    /// Files applied by this call.
    pub applied: Vec<String>,
}

/// Brings the schema to this program's version, under an advisory lock.
///
/// # Errors
/// `Schema` when the database is newer than this program.
pub async fn migrate(url: &SecretString) -> Result<Migrated, Error> {
    let _ = url;
    todo!()
}

impl Store {
    /// Whether the schema is the one that this program was built for.
    ///
    /// # Errors
    /// `Schema` when it is older or newer.
    pub async fn check_schema(&self) -> Result<(), Error> {
        todo!()
    }
}
