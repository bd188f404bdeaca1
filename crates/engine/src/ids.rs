//! Typed ids of edges, weights and values, and vectors indexed by them.
//!
//! An id is a newtype index, so an [`EdgeId`] cannot be confused with a [`WeightId`], an op, a row
//! or a position. [`IdVec`] is a `Vec` indexed by one kind of id. Neither has a runtime cost.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A typed index.
pub trait Id: Copy {
    /// Returns the id with this index.
    fn new(index: usize) -> Self;

    /// Returns its index.
    fn index(self) -> usize;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(usize);

        impl $name {
            /// Returns the id with this index.
            pub const fn new(index: usize) -> $name {
                $name(index)
            }

            /// Returns its index.
            pub const fn index(self) -> usize {
                self.0
            }
        }

        impl Id for $name {
            fn new(index: usize) -> $name {
                $name(index)
            }

            fn index(self) -> usize {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

ids! {
    /// Index of an edge in its program.
    EdgeId;
    /// Index of a weight in its program.
    WeightId;
    /// Index of a value in its plan.
    ValueId;
}

impl ValueId {
    /// Returns the value's id after its plan is appended to a plan with `values` values.
    pub const fn after(self, values: usize) -> ValueId {
        ValueId(self.0 + values)
    }

    /// Inverse of [`after`](Self::after).
    pub const fn without(self, values: usize) -> ValueId {
        ValueId(self.0 - values)
    }
}

/// A vector indexed by one kind of id.
///
/// ```
/// use pellucid_engine::ids::{IdVec, ValueId};
/// let mut names: IdVec<ValueId, &str> = IdVec::default();
/// let first = names.push("first");
/// assert_eq!((names[first], first.index(), names.len()), ("first", 0, 1));
/// assert_eq!(names.get(ValueId::new(1)), None);
/// ```
#[derive(Clone, PartialEq)]
pub struct IdVec<I, T> {
    items: Vec<T>,
    id: PhantomData<I>,
}

impl<I: Id, T> IdVec<I, T> {
    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Appends an item; returns its id.
    pub fn push(&mut self, item: T) -> I {
        self.items.push(item);
        I::new(self.items.len() - 1)
    }

    /// Returns the item of an id, if it exists.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }

    /// Returns the ids, in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + use<I, T> {
        (0..self.items.len()).map(I::new)
    }

    /// Iterates over the items, in the order of their ids.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// Iterates over the items mutably, in the order of their ids.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.items.iter_mut()
    }

    /// Iterates over the items with their ids, in order.
    pub fn iter_with_ids(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(index, item)| (I::new(index), item))
    }

    /// Returns the items as a slice.
    pub fn as_slice(&self) -> &[T] {
        &self.items
    }
}

impl<I: Id, T: Clone> IdVec<I, T> {
    /// Returns `len` copies of an item.
    pub fn filled(item: T, len: usize) -> IdVec<I, T> {
        IdVec::from(vec![item; len])
    }

    /// Truncates or extends to `len` items; new items are copies of `item`.
    pub fn resize(&mut self, len: usize, item: T) {
        self.items.resize(len, item);
    }
}

impl<I, T> Default for IdVec<I, T> {
    fn default() -> IdVec<I, T> {
        IdVec::from(Vec::new())
    }
}

impl<I, T> From<Vec<T>> for IdVec<I, T> {
    fn from(items: Vec<T>) -> IdVec<I, T> {
        IdVec { items, id: PhantomData }
    }
}

impl<I, T> FromIterator<T> for IdVec<I, T> {
    fn from_iter<A: IntoIterator<Item = T>>(items: A) -> IdVec<I, T> {
        IdVec::from(Vec::from_iter(items))
    }
}

impl<I, T> Extend<T> for IdVec<I, T> {
    fn extend<A: IntoIterator<Item = T>>(&mut self, items: A) {
        self.items.extend(items);
    }
}

impl<I, T> IntoIterator for IdVec<I, T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> std::vec::IntoIter<T> {
        self.items.into_iter()
    }
}

impl<'a, I, T> IntoIterator for &'a IdVec<I, T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> std::slice::Iter<'a, T> {
        self.items.iter()
    }
}

impl<'a, I, T> IntoIterator for &'a mut IdVec<I, T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> std::slice::IterMut<'a, T> {
        self.items.iter_mut()
    }
}

impl<I: Id, T> Index<I> for IdVec<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for IdVec<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

impl<I, T: fmt::Debug> fmt::Debug for IdVec<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.fmt(f)
    }
}
