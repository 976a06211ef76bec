//! Methods that set one field of a request or of options: their structs may gain fields, so that other crates cannot write
//! them out.

/// Gives a struct one method for each field named, which sets it.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($options:ty { $($set:ident($field:ident: $type:ty)),+ $(,)? }) => {
        impl $options {
            $(
                #[doc = concat!("The same with this `", stringify!($field), "`.")]
                #[must_use]
                pub fn $set(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )+
        }
    };
}
