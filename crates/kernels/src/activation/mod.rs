//! Activation functions and their derivatives, a vector at a time; every formula is accurate to a
//! few units in the last place.
//!
//! The `activations!` table lists each function once: its variant, the names by which Hugging Face
//! configurations, plans and Python call it, and the formula's name. `forward.rs` holds the
//! function of that name, `backward.rs` its derivative. To add one, add a row; the compiler then
//! asks for both formulas, and the tests here for a reference in double precision.

mod backward;
mod forward;
#[cfg(test)]
mod tests;

pub use backward::{
    activate_backward, activate_gated_backward, soft_cap_backward, softplus_derivative, xielu_backward,
};
pub(crate) use forward::{SoftCap, exp, map};
pub use forward::{activate, activate_gated, xielu};

use crate::simd::{Lanes, Simd};

/// An elementwise function of a vector.
pub(crate) trait Unary {
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V;

    /// The function applied to the linear branch of a gated MLP before the product.
    #[inline(always)]
    fn linear<S: Lanes>(&self, _: S, x: S::V) -> S::V {
        x
    }
}

/// A function with a known derivative.
pub(crate) trait Derivative: Unary {
    fn derivative<S: Simd>(&self, s: S, x: S::V) -> S::V;

    /// The derivative of [`Unary::linear`].
    #[inline(always)]
    fn linear_derivative<S: Simd>(&self, s: S, _: S::V) -> S::V {
        s.splat(1.0)
    }
}

/// Declares [`Activation`] from the table of activation functions:
/// `Variant: formula, ["name", "other name"…];`, and for a gated function that changes the linear
/// branch too, `linear formula` after its own. The first argument is a `$` for the inner macro.
macro_rules! activations {
    ($d:tt $($(#[$doc:meta])* $variant:ident: $formula:ident $(linear $linear:ident)?, [$($name:literal),*];)+) => {
        /// The activation functions that models use.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum Activation {
            $($(#[$doc])* $variant,)+
        }

        impl Activation {
            /// All activation functions.
            pub const ALL: [Activation; [$(stringify!($variant)),+].len()] = [$(Activation::$variant),+];

            /// Its names, the one that plans write first. Empty if no configuration names this
            /// function.
            pub const fn names(self) -> &'static [&'static str] {
                match self {
                    $(Activation::$variant => &[$($name),*],)+
                }
            }
        }

        $(
            pub(crate) struct $variant;

            impl Unary for $variant {
                #[inline(always)]
                fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
                    forward::$formula(s, x)
                }

                $(
                    #[inline(always)]
                    fn linear<S: Lanes>(&self, s: S, x: S::V) -> S::V {
                        forward::$linear(s, x)
                    }
                )?
            }

            impl Derivative for $variant {
                #[inline(always)]
                fn derivative<S: Simd>(&self, s: S, x: S::V) -> S::V {
                    backward::$formula(s, x)
                }

                $(
                    #[inline(always)]
                    fn linear_derivative<S: Simd>(&self, s: S, x: S::V) -> S::V {
                        backward::$linear(s, x)
                    }
                )?
            }
        )+

        /// Evaluates an expression with `f` bound to the type of an [`Activation`], so that the
        /// function is inlined.
        macro_rules! with_activation {
            ($d activation:expr, $d f:ident => $d with:expr) => {
                match $d activation {
                    $($crate::activation::Activation::$variant => {
                        let $d f = &$crate::activation::$variant;
                        $d with
                    })+
                }
            };
        }
        pub(crate) use with_activation;
    };
}

activations! { $
    /// `x · sigmoid(x)`, also called swish.
    Silu: silu, ["silu", "swish"];
    /// GELU, with the exact error function.
    Gelu: gelu, ["gelu"];
    /// GELU, tanh approximation.
    GeluTanh: gelu_tanh, ["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh"];
    /// GELU as `x · sigmoid(1.702 x)`.
    GeluQuick: gelu_quick, ["quick_gelu"];
    /// `max(x, 0)`
    Relu: relu, ["relu"];
    /// `max(x, 0)²`
    ReluSquared: relu_squared, ["relu2"];
    /// `tanh(x)`
    Tanh: tanh, ["tanh"];
    /// `sigmoid(x)`
    Sigmoid: sigmoid, ["sigmoid"];
    /// `x`
    Identity: identity, ["linear"];
    /// `ln(1 + eˣ)`
    Softplus: softplus, ["softplus"];
    /// GPT-OSS's gate: both branches clamped to 7, `gate · sigmoid(1.702 gate) · (linear + 1)`.
    ClampedGlu: clamped_glu linear clamped_linear, [];
}

impl Activation {
    /// Returns the function with this name in a Hugging Face configuration, a plan or Python.
    ///
    /// ```
    /// use pellucid_kernels::activation::Activation;
    /// assert_eq!(Activation::named("gelu_pytorch_tanh"), Some(Activation::GeluTanh));
    /// ```
    pub fn named(name: &str) -> Option<Activation> {
        Activation::ALL.into_iter().find(|activation| activation.names().contains(&name))
    }

    /// All names of all functions, in table order.
    pub fn all_names() -> impl Iterator<Item = &'static str> {
        Activation::ALL.into_iter().flat_map(|activation| activation.names().iter().copied())
    }
}
