//! The HMAC secrets that reservation ids are derived from.
//!
//! A derived id makes a repeat safe even after Redis forgot the first try: the same request leads
//! to the same reservation. The secret keeps ids unguessable. An activity version pins the secret
//! it was created with, since a rotation in mid-sale would give a repeat another id.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use data_encoding::{BASE32_NOPAD, BASE64};
use hmac::{Hmac, KeyInit, Mac};
use seckill_state_machine::{Quantity, RequestId, ReservationId, Scope, UserId};
use secrecy::{ExposeSecret, SecretBox};
use sha2::Sha256;

/// Shortest secret: the output size of SHA-256; a shorter key would weaken the HMAC.
const SECRET_BYTES_MIN: usize = 32;

/// Characters of a reservation id: 130 bits, far beyond any collision.
const RESERVATION_ID_LEN: usize = 26;

/// Why the setting `SECKILL_HMAC_SECRETS` is wrong. Never repeats a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretsError {
    /// Nothing was given.
    #[error("no secret given")]
    Empty,
    /// An entry is not of the form `<version>:<base64>`.
    #[error("entry {entry} is not of the form <version>:<base64>")]
    Form {
        /// Which entry, from 1.
        entry: usize,
    },
    /// A secret is too short.
    #[error("secret of version {version} has fewer than 32 bytes")]
    Short {
        /// Which version.
        version: u32,
    },
    /// A version is given twice.
    #[error("version {version} is given twice")]
    Twice {
        /// Which version.
        version: u32,
    },
    /// An activity wants a version that is not configured.
    #[error("no secret of version {version} is configured")]
    Unknown {
        /// Which version.
        version: u32,
    },
}

/// The configured secrets by version.
pub struct HmacSecrets(BTreeMap<u32, SecretBox<[u8]>>);

impl HmacSecrets {
    /// Derives the reservation id of a request: the first 26 characters of the lower-case unpadded
    /// Base32 of HMAC-SHA-256 over activity, SKU, version, user and request id joined by NUL, with
    /// the quantity appended when it is not 1.
    ///
    /// # Errors
    /// [`SecretsError::Unknown`] when the version is not configured.
    pub fn reservation_id(
        &self,
        secret_version: u32,
        scope: &Scope,
        user_id: &UserId,
        request_id: &RequestId,
        quantity: Quantity,
    ) -> Result<ReservationId, SecretsError> {
        let unknown = SecretsError::Unknown {
            version: secret_version,
        };
        let secret = self.0.get(&secret_version).ok_or(unknown.clone())?;
        let mut mac =
            Hmac::<Sha256>::new_from_slice(secret.expose_secret()).map_err(|_| unknown.clone())?;
        let version = scope.version.to_string();
        let parts = [
            scope.activity_id.as_str(),
            scope.sku_id.as_str(),
            &version,
            user_id.as_str(),
            request_id.as_str(),
        ];
        mac.update(parts.join("\0").as_bytes());
        if quantity != Quantity::ONE {
            mac.update(format!("\0{quantity}").as_bytes());
        }
        let mut text = BASE32_NOPAD
            .encode(&mac.finalize().into_bytes())
            .to_ascii_lowercase();
        text.truncate(RESERVATION_ID_LEN);
        ReservationId::parse(text).map_err(|_| unknown)
    }

    /// The newest configured version, which new activities pin by default.
    #[must_use]
    pub fn latest_version(&self) -> u32 {
        self.0.keys().next_back().copied().unwrap_or_default()
    }

    /// Whether a version is configured.
    #[must_use]
    pub fn has(&self, version: u32) -> bool {
        self.0.contains_key(&version)
    }
}

impl fmt::Debug for HmacSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HmacSecrets(versions {:?})",
            self.0.keys().collect::<Vec<_>>()
        )
    }
}

impl FromStr for HmacSecrets {
    type Err = SecretsError;

    /// Reads `<version>:<base64>[,…]`.
    fn from_str(text: &str) -> Result<Self, SecretsError> {
        let mut secrets = BTreeMap::new();
        for (index, entry) in text.split(',').map(str::trim).enumerate() {
            if entry.is_empty() && index == 0 && !text.contains(',') {
                return Err(SecretsError::Empty);
            }
            let form = SecretsError::Form { entry: index + 1 };
            let (version, base64) = entry.split_once(':').ok_or(form.clone())?;
            let version: u32 = version.parse().map_err(|_| form.clone())?;
            let bytes = BASE64.decode(base64.as_bytes()).map_err(|_| form.clone())?;
            if version == 0 {
                return Err(form);
            }
            if bytes.len() < SECRET_BYTES_MIN {
                return Err(SecretsError::Short { version });
            }
            if secrets
                .insert(version, SecretBox::from(bytes.into_boxed_slice()))
                .is_some()
            {
                return Err(SecretsError::Twice { version });
            }
        }
        Ok(Self(secrets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(bytes: usize) -> String {
        BASE64.encode(&vec![7; bytes])
    }

    #[test]
    fn wrong_settings_are_named_and_secrets_never_shown() {
        let error = |text: &str| HmacSecrets::from_str(text).unwrap_err();
        assert_eq!(error(""), SecretsError::Empty);
        assert_eq!(error("1"), SecretsError::Form { entry: 1 });
        assert_eq!(error("x:AAAA"), SecretsError::Form { entry: 1 });
        assert_eq!(
            error(&format!("0:{}", secret(32))),
            SecretsError::Form { entry: 1 }
        );
        assert_eq!(
            error(&format!("1:{}", secret(31))),
            SecretsError::Short { version: 1 }
        );
        let twice = format!("1:{0},1:{0}", secret(32));
        assert_eq!(error(&twice), SecretsError::Twice { version: 1 });
        let good = HmacSecrets::from_str(&format!("1:{0},2:{0}", secret(32))).unwrap();
        assert_eq!(good.latest_version(), 2);
        assert!(!format!("{good:?}").contains(&secret(32)));
    }
}
