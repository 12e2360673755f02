//! Enums that stand in a table with what belongs to each variant.

/// Declares an enum, its variants in order as `ALL`, and a function that returns what stands next
/// to a variant.
macro_rules! table_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident;
        $(#[$function_attribute:meta])*
        $function_visibility:vis fn $function:ident() -> $type:ty;
        $($(#[$variant_attribute:meta])* $variant:ident = $value:expr,)*
    ) => {
        $(#[$attribute])*
        $visibility enum $name {
            $($(#[$variant_attribute])* $variant,)*
        }

        impl $name {
            /// All variants, in the order of their declaration.
            $visibility const ALL: [Self; [$(stringify!($variant)),*].len()] =
                [$(Self::$variant),*];

            $(#[$function_attribute])*
            $function_visibility fn $function(self) -> $type {
                match self {
                    $(Self::$variant => $value,)*
                }
            }
        }
    };
}

pub(crate) use table_enum;
