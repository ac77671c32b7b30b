/** The icon of the sidebar, of the toolbar's button and of recorded sessions: the bars of a load chart. */

import { LabIcon } from '@jupyterlab/ui-components';

export const monitorIcon = new LabIcon({
  name: 'kernel-monitor:monitor',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">' +
    '<path class="jp-icon3" fill="#616161" d="M4 20v-6h3v6zm4.5 0V9h3v11zm4.5 0v-8h3v8zm4.5 0V4h3v16z"/></svg>'
});
