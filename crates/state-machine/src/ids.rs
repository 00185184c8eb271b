//! Identifiers as types, so that a SKU can never stand where a user belongs.
//!
//! Every id that reaches a key or a packed value is 1 to 128 bytes of `[A-Za-z0-9_-]`: braces would
//! move the hash slot, `|` would shift the packed fields, `:` and NUL would make tags ambiguous.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest id, in bytes.
pub const ID_LEN_MAX: usize = 128;

/// The characters of a derived reservation id.
const RESERVATION_ID_LEN: usize = 26;

const MESSAGE_ID_PREFIX: &str = "reserve-order:";
const MESSAGE_ID_SUFFIX: &str = ":v1";

/// Why a text is not an id. The text itself is not repeated: it may be huge or hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Nothing was given.
    #[error("must not be empty")]
    Empty,
    /// Longer than [`ID_LEN_MAX`].
    #[error("must be at most 128 bytes, has {len}")]
    TooLong {
        /// Length found, in bytes.
        len: usize,
    },
    /// A byte outside the allowed set.
    #[error("may hold only letters, digits, '_' and '-'; byte {at} is something else")]
    Character {
        /// Position of the first such byte.
        at: usize,
    },
    /// Not of the fixed form that this derived id has.
    #[error("is not of the form of this id")]
    Form,
}

/// Whether a byte may appear in an id.
#[must_use]
pub const fn is_id_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn check(text: &str) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty);
    }
    if text.len() > ID_LEN_MAX {
        return Err(IdError::TooLong { len: text.len() });
    }
    match text.bytes().position(|byte| !is_id_byte(byte)) {
        Some(at) => Err(IdError::Character { at }),
        None => Ok(()),
    }
}

fn check_reservation_id(text: &str) -> Result<(), IdError> {
    check(text)?;
    let base32 = text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'2'..=b'7'));
    if text.len() == RESERVATION_ID_LEN && base32 {
        Ok(())
    } else {
        Err(IdError::Form)
    }
}

fn check_message_id(text: &str) -> Result<(), IdError> {
    let middle = text
        .strip_prefix(MESSAGE_ID_PREFIX)
        .and_then(|rest| rest.strip_suffix(MESSAGE_ID_SUFFIX))
        .ok_or(IdError::Form)?;
    check_reservation_id(middle)
}

fn check_order_id(text: &str) -> Result<(), IdError> {
    check(text)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks the text and keeps it.
            ///
            /// # Errors
            /// [`IdError`] says what is wrong with it.
            pub fn parse(text: impl Into<String>) -> Result<Self, IdError> {
                let text = text.into();
                $check(&text)?;
                Ok(Self(text))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    };
}

macro_rules! plain_debug {
    ($($name:ident)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    )*};
}

id!(
    /// An activity: one sale campaign.
    ActivityId,
    check
);
id!(
    /// What is sold.
    SkuId,
    check
);
id!(
    /// A buyer. Its `Debug` is redacted: raw user ids never reach a log (I12).
    UserId,
    check
);
id!(
    /// The caller's idempotency key.
    RequestId,
    check
);
id!(
    /// One accepted claim on stock: 26 characters of lower-case Base32, derived by HMAC.
    ReservationId,
    check_reservation_id
);
id!(
    /// The id under which an order request travels: `reserve-order:<reservation_id>:v1`.
    MessageId,
    check_message_id
);
id!(
    /// An order; made in PostgreSQL's transaction.
    OrderId,
    check_order_id
);

plain_debug!(ActivityId SkuId RequestId ReservationId MessageId OrderId);

impl fmt::Debug for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserId(…)")
    }
}

impl MessageId {
    /// The message id of a reservation; the same for every send and resend.
    #[must_use]
    pub fn of(reservation_id: &ReservationId) -> Self {
        Self(format!(
            "{MESSAGE_ID_PREFIX}{reservation_id}{MESSAGE_ID_SUFFIX}"
        ))
    }

    /// The reservation whose order request travels under this id.
    #[must_use]
    pub fn reservation_id(&self) -> ReservationId {
        let end = self.0.len() - MESSAGE_ID_SUFFIX.len();
        ReservationId(self.0[MESSAGE_ID_PREFIX.len()..end].to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVATION: &str = "abcdefghijklmnopqrstuvwx27";

    #[test]
    fn ids_that_could_move_a_slot_or_shift_a_field_are_refused() {
        for text in ["{}", "}", "x}{y", "a|b", "a:b", "a b", "a\0b", "é", "\t"] {
            assert!(
                matches!(UserId::parse(text), Err(IdError::Character { .. })),
                "{text:?}"
            );
        }
        assert_eq!(UserId::parse(""), Err(IdError::Empty));
        assert_eq!(
            UserId::parse("x".repeat(129)),
            Err(IdError::TooLong { len: 129 })
        );
        assert!(UserId::parse("x".repeat(128)).is_ok());
    }

    #[test]
    fn a_message_id_leads_back_to_its_reservation() {
        let reservation_id = ReservationId::parse(RESERVATION).unwrap();
        let message_id = MessageId::of(&reservation_id);
        assert_eq!(
            message_id.as_str(),
            format!("reserve-order:{RESERVATION}:v1")
        );
        assert_eq!(message_id.reservation_id(), reservation_id);
        assert_eq!(MessageId::parse(message_id.as_str()).unwrap(), message_id);
        assert_eq!(MessageId::parse("reserve-order:x:v1"), Err(IdError::Form));
        assert_eq!(MessageId::parse("reserve-order::v1"), Err(IdError::Empty));
    }

    #[test]
    fn debug_of_a_user_hides_the_user() {
        let user = UserId::parse("alice").unwrap();
        assert!(!format!("{user:?}").contains("alice"));
    }
}
