import '@kernel-monitor/widgets/style/index.css';
import './sidebar.css';
import './statusbar.css';
import './toolbar.css';
