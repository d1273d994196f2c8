//! All collectives but all-reduce as one: what a rank shows the others, and what it takes of what they show.
//!
//! ```text
//!                   shows                            takes
//! broadcast         root: its array                  the others: root's array
//! all_gather        its block, to all                a block from each
//! gather            its block, unless it is root     root: a block from each
//! scatter           root: a block to each            a block from root
//! all_to_all        a block to each                  a block from each
//! reduce_scatter    a block to each                  what all show it, combined
//! reduce            its array, unless it is root     root: what all show, combined
//! scan              its array                        what the ranks up to itself show, combined
//! exscan            its array                        what the ranks before it show, combined
//! ```
//! A [`Deal`] says this for one rank, and nothing about how bytes come from one rank to another: that is the same for all
//! collectives, and the business of `exchange`.

use std::ops::Range;

use crate::blocks::Blocks;
use crate::dtype::{DType, ReduceOp};
use crate::kernels::{Bytes, Reducer};

/// Which rank of how many.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    pub me: usize,
    pub world: usize,
}

/// One rank's part in a collective.
#[derive(Clone, Debug)]
pub struct Deal<'a> {
    /// What this rank shows the others, if anything.
    pub(super) show: Option<Bytes<'a>>,
    /// How that is cut, where each rank is shown a block of its own: in the same calls on all ranks.
    pub(super) cut: Option<Blocks<'a>>,
    pub(super) take: Take<'a>,
    /// What this rank takes from itself.
    pub(super) own: Bytes<'a>,
    pub(super) size: Size,
    /// Whether this rank wants to hear all lengths before anything moves.
    pub(super) ask: bool,
    /// Whether only the root shows, or only the root takes.
    pub(super) rooted: bool,
    /// Whether no rank combines anything: bytes are only moved.
    pub(super) moves: bool,
    pub(super) push: Option<Push>,
}

/// What a rank takes.
#[derive(Clone, Debug)]
pub(super) enum Take<'a> {
    Nothing,
    /// A block from each of the ranks `from`.
    Blocks {
        dst: Bytes<'a>,
        blocks: Blocks<'a>,
        from: Range<usize>,
    },
    /// What the ranks `from` show, combined in their order.
    Combined {
        dst: Bytes<'a>,
        reducer: Reducer,
        from: Range<usize>,
    },
    /// What combining nothing gives.
    Identity {
        dst: Bytes<'a>,
        dtype: DType,
        op: ReduceOp,
    },
}

/// What a rank knows, before it meets the others, about the longest block (or array) that is shown to one rank. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// As much as everybody.
    Known(usize),
    /// It supposes that all blocks are as long as its own. If not, nothing shall move.
    Supposed(usize),
    /// The longest of those that it shows itself.
    Own(usize),
}

impl Size {
    /// Whether all ranks that go on say the same.
    pub fn is_shared(self) -> bool {
        !matches!(self, Size::Own(_))
    }

    pub fn bytes(self) -> usize {
        match self {
            Size::Known(bytes) | Size::Supposed(bytes) | Size::Own(bytes) => bytes,
        }
    }
}

/// What every rank does for the root where root's result lies in memory that all can write to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Push {
    /// Writes its block to where it belongs, `at` bytes from the start.
    Block { root: usize, at: usize },
    /// Combines a part of the array.
    Part { root: usize, reducer: Reducer },
}

impl Push {
    pub fn root(self) -> usize {
        match self {
            Push::Block { root, .. } | Push::Part { root, .. } => root,
        }
    }
}

impl<'a> Deal<'a> {
    /// `dst` = everybody's `src`, in `blocks`; if those are not `certain`, this rank supposes that all are as long as its own.
    pub fn all_gather(blocks: Blocks<'a>, certain: bool, (dst, src): (Bytes<'a>, Bytes<'a>)) -> Deal<'a> {
        let size = if certain { Size::Known(blocks.longest()) } else { Size::Supposed(src.len()) };
        let take = Take::Blocks { dst, blocks, from: 0..blocks.count() };
        Deal { show: Some(src), cut: None, take, own: src, size, ask: false, rooted: false, moves: true, push: None }
    }

    /// The same on `root` only; `dst` of other ranks is not looked at.
    pub fn gather(
        me: usize,
        root: usize,
        blocks: Blocks<'a>,
        certain: bool,
        (dst, src): (Bytes<'a>, Bytes<'a>),
    ) -> Deal<'a> {
        let push = Some(Push::Block { root, at: blocks.of(me).start });
        let all = Deal { rooted: true, push, ..Deal::all_gather(blocks, certain, (dst, src)) };
        match me == root {
            true => Deal { show: None, ..all },
            false => Deal { take: Take::Nothing, ..all },
        }
    }

    /// `array` becomes what it is on `root`.
    pub fn broadcast(me: usize, root: usize, array: Bytes<'a>) -> Deal<'a> {
        let whole = Blocks::Even { len: array.len(), count: 1 };
        let (show, take) = match me == root {
            true => (Some(array), Take::Nothing),
            false => (None, Take::Blocks { dst: array, blocks: whole, from: root..root + 1 }),
        };
        let size = Size::Known(array.len());
        Deal { show, cut: None, take, own: array, size, ask: false, rooted: true, moves: true, push: None }
    }

    /// `dst` = this rank's block of what `root` has in `src`.
    pub fn scatter(me: usize, root: usize, blocks: Blocks<'a>, (dst, src): (Bytes<'a>, Bytes<'a>)) -> Deal<'a> {
        let whole = Blocks::Even { len: dst.len(), count: 1 };
        let (show, own) = if me == root { (Some(src), &src[blocks.of(me)]) } else { (None, src) };
        let take = Take::Blocks { dst, blocks: whole, from: root..root + 1 };
        Deal {
            show,
            cut: Some(blocks),
            take,
            own,
            size: Size::Known(blocks.longest()),
            ask: false,
            rooted: true,
            moves: true,
            push: None,
        }
    }

    /// Block `r` of `give` goes from `src` to rank `r`, block `r` of `take` comes to `dst` from there. Unless `certain`, each
    /// rank knows its own blocks only.
    pub fn all_to_all(
        me: usize,
        (give, take): (Blocks<'a>, Blocks<'a>),
        certain: bool,
        (dst, src): (Bytes<'a>, Bytes<'a>),
    ) -> Deal<'a> {
        let size = if certain { Size::Known(give.longest()) } else { Size::Own(give.longest()) };
        let take = Take::Blocks { dst, blocks: take, from: 0..give.count() };
        Deal {
            show: Some(src),
            cut: Some(give),
            take,
            own: &src[give.of(me)],
            size,
            ask: false,
            rooted: false,
            moves: true,
            push: None,
        }
    }

    /// `dst` = combination of this rank's block of everybody's `src`.
    pub fn reduce_scatter(
        me: usize,
        reducer: Reducer,
        blocks: Blocks<'a>,
        (dst, src): (Bytes<'a>, Bytes<'a>),
    ) -> Deal<'a> {
        let take = Take::Combined { dst, reducer, from: 0..blocks.count() };
        let size = Size::Known(blocks.longest());
        Deal {
            show: Some(src),
            cut: Some(blocks),
            take,
            own: &src[blocks.of(me)],
            size,
            ask: false,
            rooted: false,
            moves: false,
            push: None,
        }
    }

    /// `dst` = combination of everybody's `src`, on `root` only; `dst` of other ranks is not looked at.
    pub fn reduce(seat: Seat, root: usize, reducer: Reducer, (dst, src): (Bytes<'a>, Bytes<'a>)) -> Deal<'a> {
        let (show, take) = match seat.me == root {
            true => (None, Take::Combined { dst, reducer, from: 0..seat.world }),
            false => (Some(src), Take::Nothing),
        };
        let push = Some(Push::Part { root, reducer });
        Deal {
            show,
            cut: None,
            take,
            own: src,
            size: Size::Known(src.len()),
            ask: false,
            rooted: true,
            moves: false,
            push,
        }
    }

    /// `dst` = combination of the `src` of ranks 0 to this one.
    pub fn scan(seat: Seat, reducer: Reducer, (dst, src): (Bytes<'a>, Bytes<'a>)) -> Deal<'a> {
        let take = Take::Combined { dst, reducer, from: 0..seat.me + 1 };
        // Nobody takes anything from the last rank.
        let show = (seat.me + 1 < seat.world).then_some(src);
        Deal {
            show,
            cut: None,
            take,
            own: src,
            size: Size::Known(src.len()),
            ask: false,
            rooted: false,
            moves: false,
            push: None,
        }
    }

    /// The same without this rank's own `src`; rank 0 gets the identity.
    pub fn exscan(
        seat: Seat,
        reducer: Reducer,
        (dtype, op): (DType, ReduceOp),
        (dst, src): (Bytes<'a>, Bytes<'a>),
    ) -> Deal<'a> {
        let take = match seat.me {
            0 => Take::Identity { dst, dtype, op },
            me => Take::Combined { dst, reducer, from: 0..me },
        };
        // Of two ranks, one takes what the other has.
        Deal { take, moves: seat.world == 2, ..Deal::scan(seat, reducer, (dst, src)) }
    }

    /// The same of a rank that, if `ask`, wants to hear all lengths before anything moves.
    pub fn asking(self, ask: bool) -> Deal<'a> {
        Deal { ask, ..self }
    }

    /// Bytes that a rank shows if the longest of its blocks has `longest`.
    pub(super) fn shown_bytes(&self, longest: usize) -> usize {
        self.cut.map_or(1, |cut| cut.count()) * longest
    }

    /// Whether rank `me` writes to its array, but nothing that others show.
    pub(super) fn takes_from_nobody(&self, me: usize) -> bool {
        match &self.take {
            Take::Blocks { from, .. } => *from == (me..me + 1),
            Take::Identity { .. } => true,
            Take::Nothing | Take::Combined { .. } => false,
        }
    }

    /// Whether this rank overwrites what it shows while others read it.
    pub(super) fn overwrites(&self) -> bool {
        match (self.show, self.cut, &self.take) {
            (Some(src), None, Take::Combined { dst, .. } | Take::Identity { dst, .. }) => src.as_ptr() == dst.as_ptr(),
            _ => false,
        }
    }
}
