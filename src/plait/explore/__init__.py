"""One offline page over the catalogue and any models given: filter, pick, and see what they take at any context.

The page is one HTML file that works from `file://`, on any static host and without a network. Its figures are those of
`plait memory` and `plait flops`: `forms` writes the account of a model as closed forms, `page/account.js` evaluates
them in whole numbers. `vendor` holds the libraries it uses as they are published, less the comments that point to
source maps, each with its licence: Preact and htm (components), uPlot (charts), Panzoom (pictures).
"""
