//! The dtypes of the safetensors format.

use std::fmt;

macro_rules! stored_types {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $bits:literal;)*) => {
        /// The dtype of a stored tensor.
        ///
        /// Contains every dtype of the safetensors specification, so that a file can be listed even
        /// if no kernel supports its dtype.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum StoredType {
            $($(#[$doc])* $variant,)*
        }

        impl StoredType {
            /// All dtypes, in the order of this table.
            pub const ALL: &'static [StoredType] = &[$(StoredType::$variant,)*];

            /// The name in the file (`BF16`).
            pub fn name(self) -> &'static str {
                match self { $(StoredType::$variant => $name,)* }
            }

            /// Bits per element; some dtypes pack several elements into a byte.
            pub fn bits(self) -> usize {
                match self { $(StoredType::$variant => $bits,)* }
            }

            /// Returns the dtype of this name.
            pub fn from_name(name: &str) -> Option<StoredType> {
                match name {
                    $($name => Some(StoredType::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

stored_types! {
    /// Booleans, one byte each.
    Bool = "BOOL", 8;
    /// 4-bit floats, two per byte.
    F4 = "F4", 4;
    /// 6-bit floats with 2 exponent bits.
    F6E2M3 = "F6_E2M3", 6;
    /// 6-bit floats with 3 exponent bits.
    F6E3M2 = "F6_E3M2", 6;
    /// Unsigned bytes.
    U8 = "U8", 8;
    /// Signed bytes.
    I8 = "I8", 8;
    /// 8-bit floats with 5 exponent bits.
    F8E5M2 = "F8_E5M2", 8;
    /// 8-bit floats with 4 exponent bits.
    F8E4M3 = "F8_E4M3", 8;
    /// 8-bit powers of two (scales of blocks).
    F8E8M0 = "F8_E8M0", 8;
    /// 8-bit floats with 4 exponent bits, without negative zero.
    F8E4M3Fnuz = "F8_E4M3FNUZ", 8;
    /// 8-bit floats with 5 exponent bits, without negative zero.
    F8E5M2Fnuz = "F8_E5M2FNUZ", 8;
    /// Signed 16-bit integers.
    I16 = "I16", 16;
    /// Unsigned 16-bit integers.
    U16 = "U16", 16;
    /// IEEE half precision.
    F16 = "F16", 16;
    /// The upper half of an f32.
    Bf16 = "BF16", 16;
    /// Signed 32-bit integers.
    I32 = "I32", 32;
    /// Unsigned 32-bit integers.
    U32 = "U32", 32;
    /// IEEE single precision.
    F32 = "F32", 32;
    /// Complex numbers of two f32.
    C64 = "C64", 64;
    /// IEEE double precision.
    F64 = "F64", 64;
    /// Signed 64-bit integers.
    I64 = "I64", 64;
    /// Unsigned 64-bit integers.
    U64 = "U64", 64;
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
